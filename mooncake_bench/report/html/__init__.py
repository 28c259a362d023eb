"""The page of a report: one HTML file that needs nothing else, with its pictures as SVG and their numbers inside."""
