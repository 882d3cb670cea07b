"""Policies, which turn a request into a reply.

Models behind servers (`openai`, `local`), a model in this process (`batched`), scripts without a model (`scripted`),
and wrappers around any of them (`wrappers`). `gate`, `holding` and `control` hold calls back while weights change.
"""
