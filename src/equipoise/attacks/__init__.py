"""Attacks on the training data and on the messages of malicious clients.

A data attack has ``poison(x, y) -> (x, y)``. A message attack has ``forge(known) -> lies``;
`equipoise.Topology.deliver` puts the lies in place of the messages of malicious clients only.
"""

from equipoise.attacks.adaptive import Adaptive
from equipoise.attacks.attack import Attack, DataAttack, MessageAttack
from equipoise.attacks.backdoor import Backdoor
from equipoise.attacks.combinations import (
    Combined,
    InModelSpace,
    OnlyClients,
    Window,
    poisoners,
    uses_malicious_models,
    uses_models,
)
from equipoise.attacks.dissensus import Dissensus, Isolation
from equipoise.attacks.feature_noise import FeatureNoise
from equipoise.attacks.gaussian import Gaussian
from equipoise.attacks.inner_product import IPM, SignFlip
from equipoise.attacks.knowledge import Knowledge
from equipoise.attacks.krum_attack import KrumAttack
from equipoise.attacks.label_flip import LabelFlip
from equipoise.attacks.lie import LIE, lie_z_max
from equipoise.attacks.mimic import Mimic
from equipoise.attacks.min_max import MinMax
from equipoise.attacks.min_sum import MinSum
from equipoise.attacks.non_finite import NonFinite
from equipoise.attacks.spectral import Spectral, fiedler_vector
from equipoise.attacks.triggers import (
    ONE_PIXEL,
    Chain,
    EveryNth,
    PixelPattern,
    Trigger,
    attack_success_rate,
    targeted,
)
from equipoise.attacks.trim_attack import TrimAttack
from equipoise.attacks.tuned import Tuned
from equipoise.attacks.zero import Zero

__all__ = [
    "IPM",
    "LIE",
    "ONE_PIXEL",
    "Adaptive",
    "Attack",
    "Backdoor",
    "Chain",
    "Combined",
    "DataAttack",
    "Dissensus",
    "EveryNth",
    "FeatureNoise",
    "Gaussian",
    "InModelSpace",
    "Isolation",
    "Knowledge",
    "KrumAttack",
    "LabelFlip",
    "MessageAttack",
    "Mimic",
    "MinMax",
    "MinSum",
    "NonFinite",
    "OnlyClients",
    "PixelPattern",
    "SignFlip",
    "Spectral",
    "Trigger",
    "TrimAttack",
    "Tuned",
    "Window",
    "Zero",
    "attack_success_rate",
    "fiedler_vector",
    "lie_z_max",
    "poisoners",
    "targeted",
    "uses_malicious_models",
    "uses_models",
]
