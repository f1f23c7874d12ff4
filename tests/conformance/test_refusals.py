from nl2state.testing.refusals import *  # noqa: F403  # the shipped classes, bound to this run's backends
