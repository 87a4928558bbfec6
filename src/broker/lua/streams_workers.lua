-- Returns the workers, as workers() has them.
--@include _streams.lua
return workers()
