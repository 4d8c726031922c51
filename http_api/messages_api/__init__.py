"""Anthropic's Messages API: its own form of a chat's request and answer.

Source: https://docs.anthropic.com/en/api/messages
"""
