// Several runs on one page, as computed.

showSummary(data("summary"));
