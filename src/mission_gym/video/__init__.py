"""Pictures of environments: films of what a policy plays, and play by hand."""
