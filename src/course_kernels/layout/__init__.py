"""Descriptions of groups, and the conversions between them.

A router knows the expert of each row, torch's ``grouped_mm`` wants the ends of the groups, Helion wants offsets with a
leading 0, DeepGEMM's masked layout wants sizes and padded slots. ``GroupLayout`` is built from any of them and gives
any other, on the device and without reading a value on the host. It pads packed rows and packs padded ones, with
gradients, and ``validate`` says which value of a description is wrong.

>>> layout = GroupLayout.from_sizes(torch.tensor([2, 0, 3]))
>>> layout.offs.tolist(), layout.offsets.tolist(), layout.row_groups(6).tolist()
([2, 2, 5], [0, 2, 2, 5], [0, 0, 2, 2, 2, -1])
"""

from course_kernels.layout.group_layout import GroupLayout, padding_waste

__all__ = ["GroupLayout", "padding_waste"]
