-- Local supplier volume: revenue where customer and supplier share a nation.
select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
from customer
join orders on o_custkey = c_custkey
join lineitem on l_orderkey = o_orderkey
join supplier on s_suppkey = l_suppkey and s_nationkey = c_nationkey
join nation on n_nationkey = s_nationkey
join region on r_regionkey = n_regionkey
where r_name = 'ASIA'
  and o_orderdate >= date '1994-01-01'
  and o_orderdate < date '1994-01-01' + interval '1' year
group by n_name
order by revenue desc
