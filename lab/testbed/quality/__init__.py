"""The price of an acceptance rule: what it does to right answers and to speed, beside a rule that changes nothing.

The sequence: items.py draws the questions, site.py starts a server and a device for each rule, asking.py asks in turns,
kept.py keeps the answers, figures.py judges (bootstrap.py has its intervals), table.py, page.py and samples.py show,
command.py leads.
"""
