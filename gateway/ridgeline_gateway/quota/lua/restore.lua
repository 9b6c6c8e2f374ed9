if seen_us > (account['known'] or 0) and now - account['run_began'] < RESTORE_US then
  account['known'] = seen_us
  for index = 1, 2 do
    if bursts[index] > 0 then
      put('level', index, amounts[index])
      put('carry', index, 0)
      refill(index, math.max(0, now - seen_us))
      put('carry', index, 0)
      put('level', index, math.min(bursts[index], get('level', index) + get('moved', index)))
      shrink(index)
    end
  end
end
return finish(DONE)
