from nl2state.testing.guarding import *  # noqa: F403  # the shipped classes, bound to this run's backends
