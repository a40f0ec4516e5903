"""`bench defaults`: what an environment without shipped settings gets, beside what peers give it."""
