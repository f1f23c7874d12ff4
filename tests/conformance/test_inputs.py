from nl2state.testing.inputs import *  # noqa: F403  # the shipped classes, bound to this run's backends
