// Several runs together: all of it was computed.

showSummary(data("summary"));
