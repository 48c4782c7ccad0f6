"""Figures: `(frame, *, slo_s=None, theme=LIGHT) -> go.Figure`. Pure: no Streamlit, no clock, never a changed frame, empty frames welcome.

A frame has the columns of a query, `ts` as UTC timestamps in order, and may hold rows of nothing but `ts` where data are missing (see
`frame.with_gaps`). Every trace has a `uid`, and each of its points comes from one row: so the figure of the newest rows alone is exactly
what a figure already on screen is missing, and the live page appends it by `uid`.
"""
