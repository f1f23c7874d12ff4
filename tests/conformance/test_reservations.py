from nl2state.testing.reservations import *  # noqa: F403  # the shipped classes, bound to this run's backends
