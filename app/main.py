"""The frame round every page: navigation, the quiet, and what all pages share. Streamlit runs this file for every viewer."""

import streamlit as st

from app import here
from app.live import note
from app.pages import control, games, live, replay
from app.quiet import STYLE

st.set_page_config(page_title="poascope", layout="wide", initial_sidebar_state="auto")
st.html(f"<style>{STYLE}</style>")
PAGES = [
    st.Page(live.render, title="Live", url_path="", default=True),
    st.Page(games.render, title="Games", url_path="games"),
    st.Page(control.render, title="Control", url_path="control"),
    st.Page(replay.render, title="Replay", url_path="replay"),
]
if file := here.get().file:
    PAGES = [page for page in PAGES if page.title != "Control"]  # nothing can be steered
    note(file, key="file")
st.navigation(PAGES).run()
