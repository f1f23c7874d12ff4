from nl2state.testing.pipelines import *  # noqa: F403  # the shipped classes, bound to this run's backends
