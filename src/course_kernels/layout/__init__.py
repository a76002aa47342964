"""Descriptions of groups, and the conversions between them."""

from course_kernels.layout.group_layout import GroupLayout, padding_waste

__all__ = ["GroupLayout", "padding_waste"]
