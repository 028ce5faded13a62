-- National market share: one nation's part of a region's market for one type of part.
select
  o_year,
  sum(case when nation = 'BRAZIL' then volume else 0 end) / sum(volume) as mkt_share
from (
  select
    extract(year from o_orderdate) as o_year,
    l_extendedprice * (1 - l_discount) as volume,
    seller.n_name as nation
  from part
  join lineitem on l_partkey = p_partkey
  join supplier on s_suppkey = l_suppkey
  join orders on o_orderkey = l_orderkey
  join customer on c_custkey = o_custkey
  join nation buyer on buyer.n_nationkey = c_nationkey
  join region on r_regionkey = buyer.n_regionkey
  join nation seller on seller.n_nationkey = s_nationkey
  where r_name = 'AMERICA'
    and o_orderdate between date '1995-01-01' and date '1996-12-31'
    and p_type = 'ECONOMY ANODIZED STEEL'
) all_nations
group by o_year
order by o_year
