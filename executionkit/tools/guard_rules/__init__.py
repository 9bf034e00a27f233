"""The guards that come with the library, one small module each."""

from __future__ import annotations

from executionkit.tools.guard_rules.approval import ApprovalGuard
from executionkit.tools.guard_rules.budget import BudgetGuard
from executionkit.tools.guard_rules.network import NetworkGuard, NetworkPolicyGuard
from executionkit.tools.guard_rules.output_size import OutputSizeGuard, TruncationMode
from executionkit.tools.guard_rules.runaway import RunawayGuard
from executionkit.tools.guard_rules.schema import SchemaGuard, SchemaStrictnessGuard
from executionkit.tools.guard_rules.sensitive import RedactMode, SensitiveDataGuard
from executionkit.tools.guard_rules.side_effects import (
    Environment,
    ExecutionMode,
    SideEffectClass,
    SideEffectGuard,
)
from executionkit.tools.guard_rules.tags import TagGuard

__all__ = (
    "ApprovalGuard",
    "BudgetGuard",
    "Environment",
    "ExecutionMode",
    "NetworkGuard",
    "NetworkPolicyGuard",
    "OutputSizeGuard",
    "RedactMode",
    "RunawayGuard",
    "SchemaGuard",
    "SchemaStrictnessGuard",
    "SensitiveDataGuard",
    "SideEffectClass",
    "SideEffectGuard",
    "TagGuard",
    "TruncationMode",
)
