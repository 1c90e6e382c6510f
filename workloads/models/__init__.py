"""The networks of the published studies: functions and classes that take sizes and give modules."""
