"""What algorithms share: the contract of a learner and of an algorithm's record, replay, advantages, Adam,
compiled loops, captured steps, and how another form of a loss proves itself."""

ADAM_BETAS = (0.9, 0.999)  # for every form of Adam
