"""The three kinds of actor, and at this level the few things that all three share.

Depends on `protos` alone. `request_manager` is pure Python and numpy outside its shell and clients.
"""
