"""WebShop without a server: a catalogue in SQLite, pages as text, WebShop's own score."""

from asyncrollout.registry import EnvSpec
from asyncrollout.splits import SPLITS
from asyncrollout_envs.webshop.env import WebShop
from asyncrollout_envs.webshop.text import WebShopText

__all__ = ["SPEC", "WebShop", "WebShopText"]

SPEC = EnvSpec(
    name="webshop",
    factory="asyncrollout_envs.webshop:WebShop",
    text="asyncrollout_envs.webshop:WebShopText",
    runs="cpu",
    summary="find and buy the requested product",
    actions="search[..], click[..]",
    splits=SPLITS,
)
