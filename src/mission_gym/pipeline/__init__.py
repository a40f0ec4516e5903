"""The training loop: collector and learner take turns until the budget is spent."""
