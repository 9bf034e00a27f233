"""Stable names of failures, their kinds, and which kinds may be tried again."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = (
    "ERROR_CODE_TO_CATEGORY",
    "NON_RETRYABLE_CATEGORIES",
    "RETRYABLE_CATEGORIES",
    "BulkheadLimitType",
    "ErrorCategory",
    "ErrorCode",
    "get_category_for_code",
    "is_retryable_category",
)


class ErrorCategory(StrEnum):
    """What kind of failure it is; decides whether trying again can help."""

    RATE_LIMIT = "rate_limit"
    CIRCUIT_OPEN = "circuit_open"
    BULKHEAD_FULL = "bulkhead_full"
    TIMEOUT = "timeout"
    EXECUTION = "execution"
    CONNECTION = "connection"
    VALIDATION = "validation"
    NOT_FOUND = "not_found"
    CANCELLED = "cancelled"
    CONFIGURATION = "configuration"
    BUDGET = "budget"
    APPROVAL = "approval"
    POLICY = "policy"


class ErrorCode(StrEnum):
    """A stable name for each failure; the value equals the name."""

    # model and pattern side
    LLM_ERROR = "LLM_ERROR"
    LLM_RATE_LIMITED = "LLM_RATE_LIMITED"
    LLM_PERMANENT = "LLM_PERMANENT"
    LLM_PROVIDER_ERROR = "LLM_PROVIDER_ERROR"
    LLM_CONNECTION_FAILED = "LLM_CONNECTION_FAILED"
    LLM_TIMEOUT = "LLM_TIMEOUT"
    LLM_BAD_RESPONSE = "LLM_BAD_RESPONSE"
    LLM_STREAM_FAILED = "LLM_STREAM_FAILED"
    PATTERN_FAILED = "PATTERN_FAILED"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    CONSENSUS_FAILED = "CONSENSUS_FAILED"
    MAX_ITERATIONS = "MAX_ITERATIONS"
    EVALUATOR_FAILED = "EVALUATOR_FAILED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    APPROVAL_DENIED = "APPROVAL_DENIED"
    APPROVAL_TIMEOUT = "APPROVAL_TIMEOUT"
    APPROVAL_PENDING = "APPROVAL_PENDING"
    MISSING_EXTRA = "MISSING_EXTRA"
    STEP_TIMEOUT = "STEP_TIMEOUT"
    JOURNAL_FAILED = "JOURNAL_FAILED"
    JOURNAL_IN_DOUBT = "JOURNAL_IN_DOUBT"
    JOURNAL_LOCKED = "JOURNAL_LOCKED"
    JOURNAL_MISMATCH = "JOURNAL_MISMATCH"
    JOURNAL_VALUE = "JOURNAL_VALUE"
    # tool side
    TOOL_RATE_LIMITED = "TOOL_RATE_LIMITED"
    TOOL_CIRCUIT_OPEN = "TOOL_CIRCUIT_OPEN"
    BULKHEAD_FULL = "BULKHEAD_FULL"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    TOOL_TIMEOUT = "TOOL_TIMEOUT"
    MCP_TIMEOUT = "MCP_TIMEOUT"
    TOOL_EXECUTION_FAILED = "TOOL_EXECUTION_FAILED"
    TOOL_CONNECTION_FAILED = "TOOL_CONNECTION_FAILED"
    MCP_SERVER_ERROR = "MCP_SERVER_ERROR"
    MCP_CONNECTION_FAILED = "MCP_CONNECTION_FAILED"
    MCP_TRANSPORT_ERROR = "MCP_TRANSPORT_ERROR"
    TOOL_VALIDATION_ERROR = "TOOL_VALIDATION_ERROR"
    TOOL_ARGUMENT_ERROR = "TOOL_ARGUMENT_ERROR"
    TOOL_RESULT_ERROR = "TOOL_RESULT_ERROR"
    PARSER_ERROR = "PARSER_ERROR"
    PARSER_INVALID_FORMAT = "PARSER_INVALID_FORMAT"
    TOOL_NOT_FOUND = "TOOL_NOT_FOUND"
    TOOL_CANCELLED = "TOOL_CANCELLED"
    TOOL_BLOCKED = "TOOL_BLOCKED"
    TOOL_IDEMPOTENCY_CONFLICT = "TOOL_IDEMPOTENCY_CONFLICT"
    TOOL_REENTRANT = "TOOL_REENTRANT"
    STATE_STORE_FAILED = "STATE_STORE_FAILED"
    TOOL_REGISTRATION_FAILED = "TOOL_REGISTRATION_FAILED"
    CONFIGURATION_ERROR = "CONFIGURATION_ERROR"
    SKIPPED_PLANNED = "SKIPPED_PLANNED"
    SKIPPED_DEPENDENCY_FAILED = "SKIPPED_DEPENDENCY_FAILED"


class BulkheadLimitType(StrEnum):
    """Which limit of a bulkhead was full."""

    TOOL = "tool"
    PATTERN = "pattern"
    NAMESPACE = "namespace"
    GLOBAL = "global"
    QUEUE_DEPTH = "queue_depth"


_C = ErrorCategory
ERROR_CODE_TO_CATEGORY: Final[Mapping[ErrorCode, ErrorCategory]] = MappingProxyType(
    {
        ErrorCode.LLM_ERROR: _C.EXECUTION,
        ErrorCode.LLM_RATE_LIMITED: _C.RATE_LIMIT,
        ErrorCode.LLM_PERMANENT: _C.VALIDATION,
        ErrorCode.LLM_PROVIDER_ERROR: _C.EXECUTION,
        ErrorCode.LLM_CONNECTION_FAILED: _C.CONNECTION,
        ErrorCode.LLM_TIMEOUT: _C.TIMEOUT,
        ErrorCode.LLM_BAD_RESPONSE: _C.EXECUTION,
        ErrorCode.LLM_STREAM_FAILED: _C.CONNECTION,
        ErrorCode.PATTERN_FAILED: _C.VALIDATION,
        ErrorCode.BUDGET_EXHAUSTED: _C.BUDGET,
        ErrorCode.CONSENSUS_FAILED: _C.VALIDATION,
        ErrorCode.MAX_ITERATIONS: _C.BUDGET,
        ErrorCode.EVALUATOR_FAILED: _C.VALIDATION,
        ErrorCode.DEADLINE_EXCEEDED: _C.BUDGET,
        ErrorCode.APPROVAL_DENIED: _C.APPROVAL,
        ErrorCode.APPROVAL_TIMEOUT: _C.APPROVAL,
        ErrorCode.APPROVAL_PENDING: _C.APPROVAL,
        ErrorCode.MISSING_EXTRA: _C.CONFIGURATION,
        ErrorCode.STEP_TIMEOUT: _C.TIMEOUT,
        ErrorCode.JOURNAL_FAILED: _C.CONFIGURATION,
        ErrorCode.JOURNAL_IN_DOUBT: _C.VALIDATION,
        ErrorCode.JOURNAL_LOCKED: _C.CONFIGURATION,
        ErrorCode.JOURNAL_MISMATCH: _C.VALIDATION,
        ErrorCode.JOURNAL_VALUE: _C.VALIDATION,
        ErrorCode.TOOL_RATE_LIMITED: _C.RATE_LIMIT,
        ErrorCode.TOOL_CIRCUIT_OPEN: _C.CIRCUIT_OPEN,
        ErrorCode.BULKHEAD_FULL: _C.BULKHEAD_FULL,
        ErrorCode.RESOURCE_EXHAUSTED: _C.BULKHEAD_FULL,
        ErrorCode.TOOL_TIMEOUT: _C.TIMEOUT,
        ErrorCode.MCP_TIMEOUT: _C.TIMEOUT,
        ErrorCode.TOOL_EXECUTION_FAILED: _C.EXECUTION,
        ErrorCode.MCP_SERVER_ERROR: _C.EXECUTION,
        ErrorCode.TOOL_CONNECTION_FAILED: _C.CONNECTION,
        ErrorCode.MCP_CONNECTION_FAILED: _C.CONNECTION,
        ErrorCode.MCP_TRANSPORT_ERROR: _C.CONNECTION,
        ErrorCode.TOOL_VALIDATION_ERROR: _C.VALIDATION,
        ErrorCode.TOOL_ARGUMENT_ERROR: _C.VALIDATION,
        ErrorCode.TOOL_RESULT_ERROR: _C.VALIDATION,
        ErrorCode.PARSER_ERROR: _C.VALIDATION,
        ErrorCode.PARSER_INVALID_FORMAT: _C.VALIDATION,
        ErrorCode.TOOL_NOT_FOUND: _C.NOT_FOUND,
        ErrorCode.TOOL_CANCELLED: _C.CANCELLED,
        ErrorCode.TOOL_BLOCKED: _C.POLICY,
        ErrorCode.TOOL_IDEMPOTENCY_CONFLICT: _C.VALIDATION,
        ErrorCode.TOOL_REENTRANT: _C.VALIDATION,
        ErrorCode.STATE_STORE_FAILED: _C.CONNECTION,
        ErrorCode.TOOL_REGISTRATION_FAILED: _C.CONFIGURATION,
        ErrorCode.CONFIGURATION_ERROR: _C.CONFIGURATION,
        ErrorCode.SKIPPED_PLANNED: _C.CANCELLED,
        ErrorCode.SKIPPED_DEPENDENCY_FAILED: _C.CANCELLED,
    }
)
"""The category of each code."""

RETRYABLE_CATEGORIES = frozenset(
    {
        _C.RATE_LIMIT,
        _C.CIRCUIT_OPEN,
        _C.BULKHEAD_FULL,
        _C.TIMEOUT,
        _C.EXECUTION,
        _C.CONNECTION,
    }
)
"""Categories in which the same request may succeed later."""

NON_RETRYABLE_CATEGORIES = frozenset(ErrorCategory) - RETRYABLE_CATEGORIES
"""Categories in which the same request fails again."""


def get_category_for_code(code: ErrorCode) -> ErrorCategory:
    """The category that `code` belongs to."""
    return ERROR_CODE_TO_CATEGORY[code]


def is_retryable_category(category: ErrorCategory) -> bool:
    """Whether the same request may succeed later."""
    return category in RETRYABLE_CATEGORIES
