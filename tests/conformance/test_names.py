from nl2state.testing.names import *  # noqa: F403  # the shipped classes, bound to this run's backends
