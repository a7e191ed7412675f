"""The request manager: schedule → draft → merge → verify → commit → emit.

Pure Python and numpy outside its shell (`actor`) and its clients: no torch, no Ray, no gRPC.
"""
