from nl2state.testing.tokens import *  # noqa: F403  # the shipped classes, bound to this run's backends
