"""Property tests prove rules, not speed: on a loaded machine a deadline would be a coin toss."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
