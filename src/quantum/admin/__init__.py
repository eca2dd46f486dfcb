"""The admin API: every object of the control plane, read and changed by people with roles."""

from __future__ import annotations

from quantum.admin.api import Api
from quantum.admin.errors import ApiError, ErrorBody
from quantum.admin.openapi import build, document
from quantum.admin.pages import AdminPages
from quantum.admin.port import (
    ControlPort,
    GroupsPort,
    RefusalNote,
    RefusalSink,
    WhyPort,
)
from quantum.admin.routes import Parameter, Route
from quantum.admin.table import ROUTES

__all__ = [
    "ROUTES",
    "AdminPages",
    "Api",
    "ApiError",
    "ControlPort",
    "ErrorBody",
    "GroupsPort",
    "Parameter",
    "RefusalNote",
    "RefusalSink",
    "Route",
    "WhyPort",
    "build",
    "document",
]
