"""Settings for the property tests."""

from hypothesis import settings

# No example fails for being slow: the machine may be busy with other things.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
