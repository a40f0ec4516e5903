"""The user's environment: an id and kwargs in, a factory, an EnvSpec and one running slot out."""
