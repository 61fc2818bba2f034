"""The console: pages for operators, on the admin HTTP of a broker.

It is a client of the cluster. Each browser that logs in has a client of its own with that login, so
brokers decide what it sees and does, by the same rules as for any other client; there are no others
here. Every page works without scripts; with them, lists renew themselves every few seconds.

A page is a model, made by a function of `memq.console.pages`, and a template of the same name.
"""
