"""The client of OpenAI-compatible servers. The modules, in the order in which a call passes them:

policy         OpenAIPolicy: the options, the loop over a call's attempts, pause and resume for new weights
session        the HTTP session and the API key; waits end when it closes
call           one request on its way: its deadline, what has been tried, what went wrong
routing        which server gets the call (session affinity), and the queue in which it waits for a place
endpoint       one server: its load and state, the POST itself, and how it is notified of new weights
concurrency_limit  how many calls a server gets at a time, and when the next one may start
hill_climbing  ... what "adaptive" finds: the number of calls at which most work gets done
attempt        one attempt at one server: post, then accept, refuse or fail
first_contact  a server that has never answered: its kind, how long it is waited for, why it is silent
codec          a request as a JSON body; a response as a `Generation` whose tokens spell its text
bodies         response bodies, decompressed up to a cap, large ones in a thread
responses      what servers send, whole or streamed, as structs
refusals       what a response without a generation means: retry, wait, a shorter reply, or advice to the user
health         lost servers: when they are back, and whether they still have the current weights
"""
