"""What is written into `status`: pure functions of what a plan has seen. Equal input gives equal status."""

from plait_operator.status.compose import role_status_of, status_json, status_of
from plait_operator.status.inputs import RoleView, View

__all__ = ["RoleView", "View", "role_status_of", "status_json", "status_of"]
