from nl2state.testing.clocks import *  # noqa: F403  # the shipped classes, bound to this run's backends
