from fakes.honest.habits import Honest


def habits_of(lie, settings): return Honest(settings)
