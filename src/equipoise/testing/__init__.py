"""The laws that rules and attacks obey, as checks for your own rules and attacks.

::

    from equipoise import testing

    def test_my_rule():
        testing.check_rule(MyRule())

    @pytest.mark.parametrize("law", testing.LAWS)  # or one test for each law
    def test_my_rule_obeys(law):
        testing.check_rule(MyRule(), laws=[law])

Hypothesis searches for a round that breaks a law and shows the smallest one that it finds. A law is
also a function: ``testing.LAWS[name](rule, case)`` checks a `RuleRound` of your own.
``import equipoise`` does not load this package; it needs ``pip install "equipoise[testing]"``.
"""

try:
    import hypothesis  # noqa: F401
except ImportError as error:
    raise ImportError(
        'equipoise.testing needs hypothesis: pip install "equipoise[testing]"'
    ) from error

from equipoise.testing._attacked_rounds import attacked_rounds
from equipoise.testing._check_attack import DATA_LAWS, MESSAGE_LAWS, check_attack
from equipoise.testing._check_rule import LAWS, MULTI_EXCHANGE_LAWS, check_rule
from equipoise.testing._rounds import RuleRound, rounds

__all__ = [
    "DATA_LAWS",
    "LAWS",
    "MESSAGE_LAWS",
    "MULTI_EXCHANGE_LAWS",
    "RuleRound",
    "attacked_rounds",
    "check_attack",
    "check_rule",
    "rounds",
]
