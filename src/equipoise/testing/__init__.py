"""The laws that rules and attacks obey, to be tried on your own.

::

    from equipoise import testing

    def test_my_rule():
        testing.check_rule(MyRule())

    @pytest.mark.parametrize("law", testing.LAWS)  # or one test for each law
    def test_my_rule_obeys(law):
        testing.check_rule(MyRule(), laws=[law])

Hypothesis looks for a round in which a law is broken, and shows the smallest one that it finds. Laws are also functions
for rounds of your own: `equipoise.testing._laws` for any rule, `equipoise.testing._rule_cases` for some of them, and
`equipoise.testing._attack_laws`. ``import equipoise`` leaves this package out; it needs
``pip install "equipoise[testing]"``.
"""

try:
    import hypothesis  # noqa: F401
except ImportError as error:
    raise ImportError('equipoise.testing needs hypothesis: pip install "equipoise[testing]"') from error

from equipoise.testing._attacked_rounds import attacked_rounds
from equipoise.testing._check_attack import DATA_LAWS, MESSAGE_LAWS, check_attack
from equipoise.testing._check_rule import LAWS, MULTI_EXCHANGE_LAWS, check_rule
from equipoise.testing._rounds import Round, rounds

__all__ = [
    "DATA_LAWS",
    "LAWS",
    "MESSAGE_LAWS",
    "MULTI_EXCHANGE_LAWS",
    "Round",
    "attacked_rounds",
    "check_attack",
    "check_rule",
    "rounds",
]
