"""How many cases a property test gets from Hypothesis: a number of its own in the default profile, and as
many times more in another profile as that has (tests/conftest.py)."""

from __future__ import annotations

from hypothesis import settings

DEFAULT = 30
"""`max_examples` of the default profile."""


def examples(number: int) -> settings:
    """A decorator for a test whose cases take longer, or less long, than those of most tests."""
    profile = settings.get_profile(settings.get_current_profile_name())
    return settings(max_examples=max(number * profile.max_examples // DEFAULT, 1), deadline=None)
