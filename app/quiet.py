"""Streamlit's own furniture, made quiet: less padding, no decoration, figures that line up."""

STYLE = """
.stApp { font-variant-numeric: tabular-nums; }
[data-testid="stHeader"] { background: transparent; height: 2.25rem; min-height: 2.25rem; }
[data-testid="stDecoration"], [data-testid="stStatusWidget"], [data-testid="stAppDeployButton"], footer { display: none !important; }
[data-testid="stMainBlockContainer"] { padding: 1.1rem 1.6rem 2rem; max-width: 2200px; }
[data-testid="stMain"] [data-testid="stVerticalBlock"] { gap: .7rem; }
[data-testid="stSidebarHeader"] { height: 2.25rem; min-height: 2.25rem; padding-top: .4rem; margin-bottom: .7rem; }
[data-testid="stSidebarHeader"]::before { content: "poascope"; font-size: 15px; font-weight: 600; margin-right: auto; padding-left: .5rem; }
[data-testid="stSidebarContent"] { padding: 0 .7rem; }
[data-testid="stSidebarContent"] [data-testid="stSidebarUserContent"] { padding: 0 .5rem 1.5rem; }
[data-testid="stSidebar"] [data-testid="stHtml"] { padding: 0; }
[data-testid="stSidebar"] [data-testid="stVerticalBlock"] { gap: .6rem; }
[data-testid="stSidebar"] { border-right: 1px solid var(--st-border-color, rgba(128,128,128,.2)); }
[data-testid="stSidebar"] [data-testid="stForm"] { padding: 0; border: 0; }
[data-testid="stWidgetLabel"] p { font-size: .8rem; }
[data-stale="true"] { opacity: 1 !important; transition: none !important; }
.po-title { font-size: 15px; font-weight: 600; margin: 0; padding: 0; }
.po-note { font-size: 12.5px; line-height: 1.4; margin: 0; opacity: .7; }
.po-operator { display: flex; flex-wrap: wrap; align-items: center; justify-content: space-between; gap: .4rem; font-size: .8rem; }
.po-operator label { width: 100%; }
.po-operator input { width: 100%; font: inherit; color: inherit; background: transparent; padding: .35rem .5rem; border-radius: .4rem;
  border: 1px solid var(--st-border-color, rgba(128,128,128,.4)); margin-top: .2rem; }
.po-operator button { font: inherit; color: inherit; background: transparent; cursor: pointer; padding: .2rem .7rem; border-radius: .4rem;
  border: 1px solid var(--st-border-color, rgba(128,128,128,.4)); }
.po-table { border-collapse: collapse; width: 100%; font-size: 14px; margin-top: .6rem; }
.po-table th, .po-table td { text-align: left; vertical-align: top; padding: .45rem .9rem .45rem 0; white-space: nowrap;
  border: 0; border-bottom: 1px solid var(--st-border-color, rgba(128,128,128,.25)); }
.po-table th { font-size: 12px; font-weight: 400; opacity: .7; }
.po-table td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
.po-table small { display: block; opacity: .7; }
.po-list { font-size: 12.5px; line-height: 1.45; opacity: .8; margin: .2rem 0 0 1.1rem; padding: 0; }
.po-back { font-size: .85rem; }
.po-table a, .po-back { color: var(--st-link-color, inherit); text-decoration: underline; text-underline-offset: .2em; }
.po-table a:hover, .po-back:hover { text-decoration-thickness: 2px; }
@media (max-width: 640px) {
  .po-table { display: block; overflow-x: auto; }
  [data-testid="stMainBlockContainer"] { padding: 2.3rem .8rem 1.5rem; }
  .st-key-toolbar button { padding: 0 .5rem; min-height: 1.9rem; }
  .st-key-toolbar button p { font-size: 12.5px; }
  .st-key-toolbar { gap: .5rem; }
}
"""
