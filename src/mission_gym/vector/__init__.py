"""Many environments at once: factories and seeds in, StepBatch out."""
