from nl2state.testing.many_races import *  # noqa: F403  # the shipped classes, bound to this run's backends
