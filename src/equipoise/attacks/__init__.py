"""Attacks: on what malicious clients train on, and on what they send.

A data attack has ``poison(x, y) -> (x, y)``; a message attack has ``forge(known) -> lies``, to be written by
`equipoise.Topology.deliver`, which lets only malicious clients lie.
"""

from equipoise.attacks.adaptive import Adaptive
from equipoise.attacks.attack import Attack, DataAttack, MessageAttack
from equipoise.attacks.backdoor import Backdoor
from equipoise.attacks.combinations import Only, OnModels, Together, Window, poisoners
from equipoise.attacks.constant import Mimic, NonFinite, Zero
from equipoise.attacks.dissensus import Dissensus, Isolation
from equipoise.attacks.feature_noise import FeatureNoise
from equipoise.attacks.gaussian import Gaussian
from equipoise.attacks.inner_product import IPM, SignFlip
from equipoise.attacks.knowledge import Knowledge
from equipoise.attacks.krum_attack import KrumAttack
from equipoise.attacks.label_flip import LabelFlip
from equipoise.attacks.lie import LIE, hidden_deviations
from equipoise.attacks.min_max import MinMax, MinSum
from equipoise.attacks.spectral import Spectral, fiedler_vector
from equipoise.attacks.triggers import ONE_PIXEL, Chain, EveryNth, PixelPattern, Trigger, attack_success_rate, targeted
from equipoise.attacks.trim_attack import TrimAttack

__all__ = [
    "IPM",
    "LIE",
    "ONE_PIXEL",
    "Adaptive",
    "Attack",
    "Backdoor",
    "Chain",
    "DataAttack",
    "Dissensus",
    "EveryNth",
    "FeatureNoise",
    "Gaussian",
    "Isolation",
    "Knowledge",
    "KrumAttack",
    "LabelFlip",
    "MessageAttack",
    "Mimic",
    "MinMax",
    "MinSum",
    "NonFinite",
    "OnModels",
    "Only",
    "PixelPattern",
    "SignFlip",
    "Spectral",
    "Together",
    "Trigger",
    "TrimAttack",
    "Window",
    "Zero",
    "attack_success_rate",
    "fiedler_vector",
    "hidden_deviations",
    "poisoners",
    "targeted",
]
