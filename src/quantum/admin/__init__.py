"""The admin API: every object of the control plane, read and changed by people with roles."""

from __future__ import annotations

from quantum.admin.api import ApiServer
from quantum.admin.errors import ApiError, ErrorBody
from quantum.admin.openapi import build, document
from quantum.admin.pages import AdminPages
from quantum.admin.port import (
    ControlPort,
    ExplanationPort,
    GroupsPort,
    RefusalNote,
    RefusalSink,
)
from quantum.admin.routes import AdminRoute, Parameter
from quantum.admin.table import ROUTES

__all__ = [
    "ROUTES",
    "AdminPages",
    "AdminRoute",
    "ApiError",
    "ApiServer",
    "ControlPort",
    "ErrorBody",
    "ExplanationPort",
    "GroupsPort",
    "Parameter",
    "RefusalNote",
    "RefusalSink",
    "build",
    "document",
]
