"""Seeds of episodes, in a module of their own: a worker that gets a function loads all that its module loads,
which for a module of tests may be torch."""


def seed_of(env_id: int, episode: int) -> int:
    return 1000 * env_id + episode
