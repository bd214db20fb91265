"""What the pools of a group hold: page accounting."""

from plait.pools.integrity import Holder, PageAccount, account

__all__ = ["Holder", "PageAccount", "account"]
