"""The frame round every page: navigation, the quiet, and what all pages share. Streamlit runs this file for every viewer."""

from html import escape

import streamlit as st

from app import here
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
    st.html(f'<p class="po-note">{escape(file)}</p>')
st.navigation(PAGES).run()
