"""Looks at an environment or at the machine, and says what is wrong, why, and the fix."""
