"""The frame round every page: navigation, the quiet, and what all pages share. Streamlit runs this file for every viewer."""

import streamlit as st

from app import here
from app.live import note
from app.pages import games, live
from app.quiet import STYLE

st.set_page_config(page_title="poascope", layout="wide", initial_sidebar_state="auto")
st.html(f"<style>{STYLE}</style>")
if file := here.get().file:
    note(file, key="file")
st.navigation([st.Page(live.render, title="Live", url_path="", default=True), st.Page(games.render, title="Games", url_path="games")]).run()
