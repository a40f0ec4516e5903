"""The territory mission: grow on a map against scripted nations."""
